"""The parts of bench/run, one module each."""
