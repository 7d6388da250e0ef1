"""From weights to numbers: scores, turned and mirrored tests, the certificate, speed."""

from turnwise.evaluation.certificate.certificate import Certificate as Certificate
from turnwise.evaluation.certificate.certify import certify as certify
from turnwise.evaluation.certificate.measurement import Scope as Scope
from turnwise.evaluation.evaluate import examine as examine
from turnwise.evaluation.evaluate import examine_run as examine_run
from turnwise.evaluation.evaluate import read_examination as read_examination
from turnwise.evaluation.metrics import classification_scores as classification_scores
