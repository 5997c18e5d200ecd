"""The engine process: the only code that touches the device."""
