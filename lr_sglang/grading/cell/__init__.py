"""What runs inside a cell: its first process, and the process of one test.

Standard library only, with relative imports only: a cell has these files, and nothing else of the package.
"""
