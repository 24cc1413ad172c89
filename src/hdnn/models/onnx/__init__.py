"""Networks and models as ONNX graphs: one function for every part, found by its type."""
