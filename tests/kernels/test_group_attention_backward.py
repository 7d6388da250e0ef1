"""The pieces of the way back are tested through the kernels; here, that every form has them all."""


def test_every_form_has_every_gradient(kernel_errors):
    whole = {"output", "query", "key", "value", "place", "pose"}
    for case, errors in kernel_errors.items():
        assert set(errors) >= whole - {"pose"}, case
        assert ("pose" in errors) or "lifting" in case
