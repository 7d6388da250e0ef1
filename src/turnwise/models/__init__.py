"""Whole networks, one file per family, and the registry that makes them by name."""

from turnwise.models import g_cnn as g_cnn
from turnwise.models import group_performer as group_performer
from turnwise.models import gsa as gsa
from turnwise.models import hybrids as hybrids
from turnwise.models import metaformer as metaformer
from turnwise.models import modern_eq_vit as modern_eq_vit
from turnwise.models import performer as performer
from turnwise.models import resnet as resnet
from turnwise.models import small_cnn as small_cnn
from turnwise.models import turnwise_vit as turnwise_vit
from turnwise.models import unet as unet
from turnwise.models import vit as vit
from turnwise.models.canonical import canonical as canonical
from turnwise.models.contract import ImageModel as ImageModel
from turnwise.models.contract import Model as Model
from turnwise.models.contract import ModelConfig as ModelConfig
from turnwise.models.orbits import orbit as orbit
from turnwise.models.registry import create_model as create_model
from turnwise.models.registry import describe_model as describe_model
from turnwise.models.registry import describe_options as describe_options
from turnwise.models.registry import list_models as list_models
from turnwise.models.registry import model_options as model_options
from turnwise.models.registry import register as register
from turnwise.models.storage import load as load
from turnwise.models.storage import save as save
