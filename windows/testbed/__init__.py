"""Windows Python with the Windows wheels of torch under Wine: what ``python dev.py windows`` sets up and runs.

Everything here runs in a Linux process; what it starts runs under Wine. A test bed is a folder with two parts:
``python`` (the interpreter with its packages) and ``prefix`` (what Wine takes for the disk and the registry).

"""
