"""From weights to numbers: scores, turned and mirrored tests, the certificate, speed."""

from turnwise.evaluation.certificate import Certificate as Certificate
from turnwise.evaluation.certification import certify as certify
from turnwise.evaluation.examine import examine as examine
from turnwise.evaluation.examine import examine_run as examine_run
from turnwise.evaluation.examine import read_examination as read_examination
from turnwise.evaluation.measurement import Scope as Scope
from turnwise.evaluation.metrics import classification_scores as classification_scores
