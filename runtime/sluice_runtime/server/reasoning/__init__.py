"""The reasoning of models that think before they answer, apart from the answer."""
