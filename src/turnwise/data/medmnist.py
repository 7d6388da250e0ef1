"""The flat MedMNIST+ sets as catalogue entries: names, classes, checksums.  Pure Python.

Facts from the medmnist package and its Zenodo record 10519652.  ChestMNIST is left out: its
pictures carry several labels each, and every model and figure here is for one label per picture.
"""

from turnwise.data.entries import Download, Entry

SIZES = (28, 64, 128, 224)

_RECORD = "https://zenodo.org/records/10519652/files"
_CITATION = "J. Yang et al., MedMNIST v2, Scientific Data 10, 41 (2023)"
_ORGANS = (
    "bladder",
    "femur-left",
    "femur-right",
    "heart",
    "kidney-left",
    "kidney-right",
    "liver",
    "lung-left",
    "lung-right",
    "pancreas",
    "spleen",
)


def file_name(name: str, image_size: int) -> str:
    """The official name below a data folder: the size is left out at 28.

    >>> file_name("bloodmnist", 28), file_name("bloodmnist", 64)
    ('bloodmnist/bloodmnist.npz', 'bloodmnist/bloodmnist_64.npz')
    """
    suffix = "" if image_size == 28 else f"_{image_size}"
    return f"{name}/{name}{suffix}.npz"


def _entry(
    name: str,
    title: str,
    classes: tuple[str, ...],
    channels: int,
    counts: str,
    checksums: str,
    licence: str = "CC BY 4.0",
) -> Entry:
    files = [file_name(name, size) for size in SIZES]
    downloads = tuple(
        Download(f"{_RECORD}/{file.split('/')[1]}?download=1", file, md5, size)
        for file, md5, size in zip(files, checksums.split(), SIZES, strict=True)
    )
    return Entry(
        name=name,
        title=title,
        classes=classes,
        channels=channels,
        image_size=28,
        splits=f"{counts} (official)",
        licence=licence,
        citation=_CITATION,
        files=(*files, *RECONSTRUCTED.get(name, ())),
        downloads=downloads,
        image_sizes=SIZES,
    )


RECONSTRUCTED = {
    "dermamnist": (
        "dermamnist-reconstructed/dermamnist-reconstructed.npz",
        "dermamnist-reconstructed-128/dermamnist-reconstructed-128.npz",
    ),
}

# name, title, classes, channels, train / val / test, md5 of the files of 28, 64, 128 and 224
MEDMNIST = (
    _entry(
        "pathmnist",
        "PathMNIST: colon pathology",
        (
            "adipose",
            "background",
            "debris",
            "lymphocytes",
            "mucus",
            "smooth muscle",
            "normal colon mucosa",
            "cancer-associated stroma",
            "colorectal adenocarcinoma epithelium",
        ),
        3,
        "89,996 / 10,004 / 7,180",
        "a8b06965200029087d5bd730944a56c1 55aa9c1e0525abe5a6b9d8343a507616 "
        "ac42d08fb904d92c244187169d1fd1d9 2c51a510bcdc9cf8ddb2af93af1eadec",
    ),
    _entry(
        "dermamnist",
        "DermaMNIST: skin lesions under the dermatoscope",
        (
            "actinic keratoses and intraepithelial carcinoma",
            "basal cell carcinoma",
            "benign keratosis-like lesions",
            "dermatofibroma",
            "melanoma",
            "melanocytic nevi",
            "vascular lesions",
        ),
        3,
        "7,007 / 1,003 / 2,005",
        "0744692d530f8e62ec473284d019b0c7 b70a2f5635c6199aeaa28c31d7202e1f "
        "2defd784463fa5243564e855ed717de1 8974907d8e169bef5f5b96bc506ae45d",
        licence="CC BY-NC 4.0",
    ),
    _entry(
        "octmnist",
        "OCTMNIST: retinal optical coherence tomography",
        (
            "choroidal neovascularization",
            "diabetic macular edema",
            "drusen",
            "normal",
        ),
        1,
        "97,477 / 10,832 / 1,000",
        "c68d92d5b585d8d81f7112f81e2d0842 e229e9440236b774d9f0dfef9d07bdaf "
        "0a97e76651ace45c5d943ee3f65b63ae abc493b6d529d5de7569faaef2773ba3",
    ),
    _entry(
        "pneumoniamnist",
        "PneumoniaMNIST: chest X-rays of children",
        (
            "normal",
            "pneumonia",
        ),
        1,
        "4,708 / 524 / 624",
        "28209eda62fecd6e6a2d98b1501bb15f 8f4eceb4ccffa70c672198ea285246c6 "
        "05b46931834c231683c68f40c47b2971 d6a3c71de1b945ea11211b03746c1fe1",
    ),
    _entry(
        "retinamnist",
        "RetinaMNIST: severity grades of diabetic retinopathy, used as classes",
        (
            "grade 0",
            "grade 1",
            "grade 2",
            "grade 3",
            "grade 4",
        ),
        3,
        "1,080 / 120 / 400",
        "bd4c0672f1bba3e3a89f0e4e876791e4 afda852cc34dcda56f86ad2b2457dbcc "
        "e48e916a24454daf90583d4e6efb1a18 eae7e3b6f3fcbda4ae613ebdcbe35348",
    ),
    _entry(
        "breastmnist",
        "BreastMNIST: breast ultrasound",
        (
            "malignant",
            "normal, benign",
        ),
        1,
        "546 / 78 / 156",
        "750601b1f35ba3300ea97c75c52ff8f6 742edef2a1fd1524b2efff4bd7ba9364 "
        "363e4b3f8d712e9b5de15470a2aaadf1 b56378a6eefa9fed602bb16d192d4c8b",
    ),
    _entry(
        "bloodmnist",
        "BloodMNIST: blood cells under the microscope",
        (
            "basophil",
            "eosinophil",
            "erythroblast",
            "immature granulocytes (myelocytes, metamyelocytes and promyelocytes)",
            "lymphocyte",
            "monocyte",
            "neutrophil",
            "platelet",
        ),
        3,
        "11,959 / 1,712 / 3,421",
        "7053d0359d879ad8a5505303e11de1dc 2b94928a2ae4916078ca51e05b6b800b "
        "adace1e0ed228fccda1f39692059dd4c b718ff6835fcbdb22ba9eacccd7b2601",
    ),
    _entry(
        "tissuemnist",
        "TissueMNIST: kidney cortex cells",
        (
            "Collecting Duct, Connecting Tubule",
            "Distal Convoluted Tubule",
            "Glomerular endothelial cells",
            "Interstitial endothelial cells",
            "Leukocytes",
            "Podocytes",
            "Proximal Tubule Segments",
            "Thick Ascending Limb",
        ),
        1,
        "165,466 / 23,640 / 47,280",
        "ebe78ee8b05294063de985d821c1c34b 123ece2eba09d0aa5d698fda57103344 "
        "61b955355d7425a89687b06cca3ce0c2 b077128c4a949f0a4eb01517f9037b9c",
    ),
    _entry(
        "organamnist",
        "OrganAMNIST: abdominal CT, axial slices",
        _ORGANS,
        1,
        "34,561 / 6,491 / 17,778",
        "68e3f8846a6bd62f0c9bf841c0d9eacc 2dcccc29b88e6da5a01161ef20cda288 "
        "eeae80d0a227a8d099027e1b3cfd3b60 50747347e05c87dd3aaf92c49f9f3170",
    ),
    _entry(
        "organcmnist",
        "OrganCMNIST: abdominal CT, coronal slices",
        _ORGANS,
        1,
        "12,975 / 2,392 / 8,216",
        "b9ceb9546e10131b32923c5bbeaea2b1 3ce34a8724ea6f548e6db4744d03b6a9 "
        "773c1f009daa3fe5d9a2a201b2a7ed94 050f5e875dc056f6768abf94ec9995d1",
    ),
    _entry(
        "organsmnist",
        "OrganSMNIST: abdominal CT, sagittal slices",
        _ORGANS,
        1,
        "13,932 / 2,452 / 8,827",
        "9ab87b696fb54e2a387ebe992d6ed5f1 53a6d115339d874c25e309a994ff46d3 "
        "ded0c5fa01a95dc4978b956f613e9b8e b354719e553fbbb2513d5533f52a4cb1",
    ),
)
