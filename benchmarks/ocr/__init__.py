"""How many words `likeness annotate --ocr` reads, and what it costs."""
