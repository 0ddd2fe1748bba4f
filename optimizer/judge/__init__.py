"""The fixed harness: correctness stages, then timing; its verdict is data, never an exception."""
