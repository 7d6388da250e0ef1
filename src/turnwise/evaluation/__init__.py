"""From weights to numbers: scores, turned and mirrored tests, the certificate, speed."""

from turnwise.evaluation.certificate.certificate import Certificate as Certificate
from turnwise.evaluation.certificate.certify import certify as certify
from turnwise.evaluation.certificate.measurement import Scope as Scope
from turnwise.evaluation.evaluate import evaluate as evaluate
from turnwise.evaluation.evaluate import evaluate_run as evaluate_run
from turnwise.evaluation.evaluate import read_evaluation as read_evaluation
from turnwise.evaluation.metrics import classification_scores as classification_scores
