"""Models as files of other tools: NumPy, ONNX, scikit-learn, Faiss."""
