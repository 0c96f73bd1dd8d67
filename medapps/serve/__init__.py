"""Models for other programs: MLflow, ONNX."""
