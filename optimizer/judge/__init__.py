"""The fixed harness: is a candidate right, is it honest, how fast is it; its verdict is data, never an exception."""

from .judge import Judge as Judge
from .judge import judge as judge
