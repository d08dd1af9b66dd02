"""The code inside a cell: its first process, and the process of one test.

It imports only the standard library and, relatively, these files: a cell has nothing else of the
package.
"""
