"""The OpenAPI document names every status and every way to send images."""

import json

from turnwise.deploy.openapi import ERRORS, openapi


def test_the_document_covers_the_service():
    document = json.loads(json.dumps(openapi()))
    predict = document["paths"]["/predict"]["post"]
    assert set(predict["responses"]) == {"200", *ERRORS}
    kinds = {"image/*", "multipart/form-data", "application/json"}
    assert set(predict["requestBody"]["content"]) == kinds
    reference = predict["responses"]["200"]["content"]["application/json"]["schema"]
    assert "Prediction" in document["components"]["schemas"] and "predictions" in json.dumps(
        reference
    )
