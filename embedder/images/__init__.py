from embedder.images.decode import CropSpec as CropSpec
