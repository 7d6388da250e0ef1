"""From images to outputs."""

from turnwise.inference.predictor import Predictor as Predictor
