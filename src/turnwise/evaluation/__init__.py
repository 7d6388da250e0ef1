"""From weights to figures: metrics, rotated and shifted tests, certificates."""

from turnwise.evaluation.certificate.certificate import Certificate as Certificate
from turnwise.evaluation.certificate.certify import Scope as Scope
from turnwise.evaluation.certificate.certify import certify as certify
from turnwise.evaluation.evaluate import evaluate as evaluate
from turnwise.evaluation.evaluate import evaluate_run as evaluate_run
from turnwise.evaluation.metrics import classification_scores as classification_scores
