"""Models as files of other tools: NumPy and ONNX."""
