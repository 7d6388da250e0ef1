"""The description of the service for machines, as an OpenAPI document."""

from typing import Any

from turnwise import __version__
from turnwise.deploy.requests import MAX_BYTES, MAX_IMAGES

ERRORS = {
    "403": "The Host or Origin header names another server.",
    "408": "The request did not arrive in time.",
    "411": "The request does not state its Content-Length.",
    "413": f"The request is larger than {MAX_BYTES:,} bytes.",
    "422": "An image cannot be read, or the request holds none.",
    "503": "The server is busy; try again.",
}
TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
NUMBERS = {"type": "array", "items": {"type": "number"}}
TEXTS = {"type": "array", "items": TEXT}


def openapi() -> dict[str, Any]:
    """Return the document."""
    prediction = _object(
        label=TEXT, classes=TEXTS, probabilities=NUMBERS, names=TEXTS, values=NUMBERS,
        image={**TEXT, "format": "byte"}, upright={**TEXT, "format": "byte"},
    )  # fmt: skip
    predictions = {"type": "array", "items": {"$ref": "#/components/schemas/Prediction"}}
    image = {"type": "string", "format": "binary"}
    encoded = {"type": "array", "items": {**TEXT, "format": "byte"}, "maxItems": MAX_IMAGES}
    form = _object(images={"type": "array", "items": image, "maxItems": MAX_IMAGES})
    body = {
        "image/*": {"schema": image},
        "multipart/form-data": {"schema": form},
        "application/json": {"schema": _object(images=encoded, image={**TEXT, "format": "byte"})},
    }
    model = _object(
        name=TEXT, target=TEXT, classes=TEXTS, group=TEXT, licence=TEXT,
        channels=INTEGER, image_size=INTEGER, limits={"type": "object"},
    )  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "Turnwise", "version": __version__},
        "paths": {
            "/predict": {
                "post": {
                    "summary": "Classify one image or several.",
                    "parameters": [
                        _query("degrees", "rotate the images by this angle first", "number"),
                        _query("views", "1: return the images, too, as PNG files", "integer"),
                    ],
                    "requestBody": {"required": True, "content": body},
                    "responses": {
                        "200": _reply("Predictions.", _object(model=TEXT, predictions=predictions)),
                        **{
                            code: _reply(text, _object(error=TEXT)) for code, text in ERRORS.items()
                        },
                    },
                }
            },
            "/model": {
                "get": {
                    "summary": "Describe the model and the limits of requests.",
                    "responses": {"200": _reply("The model.", model)},
                }
            },
            "/health": {
                "get": {
                    "summary": "Report whether the server runs.",
                    "responses": {"200": _reply("It runs.", _object(status=TEXT, waiting=INTEGER))},
                }
            },
        },
        "components": {"schemas": {"Prediction": prediction}},
    }


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _reply(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _query(name: str, text: str, kind: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": {"type": kind}}
