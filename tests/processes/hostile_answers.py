"""Answers that attack whoever grades them. Each prints "escaped" where it finds a way; that must
not happen.

In the texts, ``OUTSIDE`` is a folder of the user's with a file ``keys`` and a socket ``socket``,
``TCP`` a port of 127.0.0.1, ``ABSTRACT`` the name of an abstract socket, ``VICTIM`` the number of
another process.
"""

C = """
import ctypes, mmap, os, struct
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(4096)
"""
DONE = "print('escaped')"
CALL = C + "if libc.syscall({}) >= 0: " + DONE
SEARCH = """
import re
def look(data):
    return re.search(rb'expected-([0-9a-f]{{8}})', data)
def maps(number):
    memory = open(f'/proc/{{number}}/mem', 'rb', 0)
    for line in open(f'/proc/{{number}}/maps'):
        first, rights = line.split()[:2]
        low, high = (int(part, 16) for part in first.split('-'))
        if 'r' in rights and '[v' not in line and high - low < 1 << 28:
            try:
                memory.seek(low)
                yield memory.read(high - low)
            except OSError:
                pass
""".replace("{{", "{").replace("}}", "}")

FILES = {
    "reads a file of the user": "open(OUTSIDE + '/keys').read(); " + DONE,
    "reads the users of the system": "open('/etc/passwd').read(); " + DONE,
    "lists the folder above": "import os\nif os.listdir(os.path.dirname(OUTSIDE)): " + DONE,
    "lists the user's folder": "import os\nif os.listdir(OUTSIDE): " + DONE,
    "goes up and in again": "open('../' * 40 + OUTSIDE.lstrip('/') + '/keys').read(); " + DONE,
    "reads by a symbolic link": "import os\nos.symlink(OUTSIDE + '/keys', 'x')\nopen('x').read(); "
    + DONE,
    "reads by a hard link": "import os\nos.link(OUTSIDE + '/keys', 'x')\nopen('x').read(); " + DONE,
    "reads by the first process's root": "open('/proc/1/root' + OUTSIDE + '/keys').read(); " + DONE,
    "reads by its parent's folder": "open('/proc/1/cwd' + OUTSIDE + '/keys').read(); " + DONE,
    "reads by an inherited folder": """
import os
for n in range(3, 64):
    try: os.close(os.open(OUTSIDE.lstrip('/') + '/keys', os.O_RDONLY, dir_fd=n)); print('escaped')
    except OSError: pass""",
    "writes a file of the user": "open(OUTSIDE + '/keys', 'w'); " + DONE,
    "makes a file there": "open(OUTSIDE + '/new', 'w'); " + DONE,
    "removes a file of the user": "import os; os.remove(OUTSIDE + '/keys'); " + DONE,
    "writes to Python": "import os; open(os.path.dirname(os.__file__) + '/lr_x.py', 'w'); " + DONE,
    "writes to packages": "import sys; open(sys.path[-1] + '/lr_x.py', 'w'); " + DONE,
    "writes to the root": "open('/x', 'w'); " + DONE,
    "changes rights of Python": "import os; os.chmod(os.path.dirname(os.__file__), 0o777); " + DONE,
    "changes a setting of the kernel": "open('/proc/sys/kernel/core_pattern', 'w').write('|/x'); "
    + DONE,
    "reads the questions with their solutions": """
import glob, sys
if any(glob.glob(path + '/lr_sglang/**/*', recursive=True) for path in sys.path): print('escaped')""",
    "reads the disk": "import os; os.mknod('d', 0o60600, os.makedev(254, 0)); open('d', "
    "'rb').read(9); " + DONE,
    "opens by a handle": CALL.format("304, -100, buffer, 0"),
    "changes its root": CALL.format("161, b'/proc/1/root'"),
    "mounts": CALL.format("165, b'none', b'/tmp', b'tmpfs', 0, None"),
    "unmounts": CALL.format("166, b'/tmp', 2"),
    "gets a new user namespace": CALL.format("272, 0x10000000"),
    "enters a namespace": C
    + "n = os.open('/proc/1/ns/mnt', 0)\nif libc.syscall(308, n, 0) == 0: "
    + DONE,
    "takes capabilities": C
    + "if libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(-1, -1)) == 0: "
    + DONE,
    "becomes root": "import os; os.setuid(0) if os.getuid() else 1 / 0; " + DONE,
    "reads the kernel's messages": CALL.format("103, 3, buffer, 4096"),
}
PROCESSES = {
    "sees others": "import os\nif any(int(n) > 9 for n in os.listdir('/proc') if n.isdigit()): "
    + DONE,
    "kills another": "import os; os.kill(VICTIM, 9); " + DONE,
    "kills all": "import os; os.kill(-1, 9); " + DONE,
    "kills the first process": C + "libc.syscall(234, 1, 1, 9)",
    "stops the first process": C + "libc.syscall(234, 1, 1, 19)",
    "kills another by its thread": CALL.format("200, VICTIM, 9"),
    "takes a handle of another": "import os; os.pidfd_open(1); " + DONE,
    "forks": "import os; os.fork(); " + DONE,
    "forks by number": CALL.format("57"),
    "forks by vfork": CALL.format("58"),
    "forks by clone": CALL.format("56, 17, 0, 0, 0, 0"),
    "forks by clone3": C
    + "buffer[0:88] = struct.pack('11Q', 0, 0, 0, 0, 17, *[0] * 6)\n"
    + "if libc.syscall(435, buffer, 88) >= 0: "
    + DONE,
    "forks by the x32 interface": CALL.format("0x40000000 + 57"),
    "forks by the interface of 32 bits": C
    + """
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex('b802000000cd80c3'))
if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() >= 0: print('escaped')""",
    "starts a shell": "import subprocess; print(subprocess.run(['sh', '-c', 'echo escaped'], "
    "capture_output=True))",
    "becomes a shell": "import os; os.execv('/bin/sh', ['sh', '-c', 'echo escaped'])",
    "becomes another Python": "import os, sys; os.execv(sys.executable, ['x', '-c', "
    "'print(\"escaped\")'])",
    "runs a file in memory": "import os; n = os.memfd_create('x'); " + DONE,
    "spawns": "import os; os.posix_spawn('/bin/sh', ['sh'], {}); " + DONE,
    "uses multiprocessing": "import multiprocessing as m; p = m.Process(target=print); p.start(); "
    + DONE,
    "traces the first process": CALL.format("101, 16, 1, 0, 0"),
    "reads the first process's memory": "open('/proc/1/mem', 'rb').read(0); " + DONE,
    "reads the first process's environment": "open('/proc/1/environ').read(); " + DONE,
    "reads memory by a system call": CALL.format("310, 1, buffer, 1, buffer, 1, 0"),
    "raises its limits": "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40)); "
    + DONE,
}
NETWORK = {
    "connects": "import socket; socket.create_connection(('127.0.0.1', TCP), 1); " + DONE,
    "sends a packet": "import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', TCP)); "
    + DONE,
    "connects by a path": "import socket; socket.socket(1).connect(OUTSIDE + '/socket'); " + DONE,
    "connects by an abstract name": "import socket; socket.socket(1).connect('\\0' + ABSTRACT); "
    + DONE,
    "connects one of a pair": "import socket; socket.socketpair()[0].connect(OUTSIDE + '/socket'); "
    + DONE,
    "sends from one of a pair": "import socket\na, b = socket.socketpair(1, 2)\na.sendto(b'x', "
    "'\\0' + ABSTRACT); " + DONE,
    "asks the machine's host": "import socket; socket.socket(40, 1).connect((2, 1)); " + DONE,
    "listens": "import socket; socket.socket().listen(); " + DONE,
    "makes a socket by number": CALL.format("41, 1, 1, 0"),
    "asks the kernel's routing": "import socket; socket.socket(16, 3, 0); " + DONE,
    "removes what refuses": "import sys, gc; sys.addaudithook = None; gc.collect(); import "
    "socket; socket.socket(1); " + DONE,
    "finds the control socket": """
import os, stat
for n in os.listdir('/proc/self/fd'):
    if os.path.exists(f'/proc/self/fd/{n}') and stat.S_ISSOCK(os.fstat(int(n)).st_mode): print('escaped')""",
}
KERNEL = {
    "reads the user's keys": CALL.format("250, 0, -3, 0"),
    "adds a key": CALL.format("248, b'user', b'x', b'x', 1, -2"),
    "loads a program": CALL.format("321, 0, buffer, 128"),
    "measures": CALL.format("298, buffer, 0, -1, -1, 0"),
    "queues input and output": CALL.format("425, 1, buffer"),
    "handles page faults": CALL.format("323, 0"),
    "shares memory": CALL.format("29, 0, 4096, 0o1600"),
}
# The answer's own test expects what no input tells: "expected-" and 8 digits. What prints it is
# right.
EXPECTED = {
    "searches its memory by a file": SEARCH
    + "for data in maps('self'):\n    if f := look(data): print(f[0].decode()); break",
    "searches its memory by a pointer": SEARCH
    + """
import ctypes
for line in open('/proc/self/maps'):
    low, high = (int(part, 16) for part in line.split()[0].split('-'))
    if 'r' in line.split()[1] and '[v' not in line and (f := look(ctypes.string_at(low, high - low))):
        print(f[0].decode()); break""",
    "searches what the collector knows": SEARCH
    + "import gc\nif f := look(repr(gc.get_objects()).encode()): print(f[0].decode())",
    "searches the frames below": SEARCH
    + """
import sys
frame = sys._getframe()
while frame:
    if f := look(repr({**frame.f_locals, 'frame': 0}).encode()): print(f[0].decode())
    frame = frame.f_back""",
    "searches the first process": SEARCH
    + "for data in maps(1):\n    if f := look(data): print(f[0].decode()); break",
    "searches what it has open": SEARCH
    + """
import os
for n in range(64):
    try:
        os.set_blocking(n, False)
        if f := look(os.pread(n, 1 << 20, 0)): print(f[0].decode())
    except OSError: pass""",
    "searches the command lines": SEARCH
    + """
import glob
for name in glob.glob('/proc/[0-9]*/cmdline'):
    if f := look(open(name, 'rb').read()): print(f[0].decode())""",
}
# Each is run twice in a row, and wrong the second time at the latest.
RESOURCES = {
    "fills its folder": """
n = 0
try:
    while True:
        with open(f'f{n}', 'wb') as file: file.write(b'x' * (15 << 20))
        n += 1
except OSError: pass""",
    "makes many files": """
try:
    for n in range(20000): open(f'f{n}', 'w').close()
except OSError: pass""",
    "closes its folder": "import os; os.chmod('.', 0)",
    "digs deep": "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')",
    "floods its output": "while True: print('x' * 100000)",
    "floods its errors": "import sys\nwhile True: sys.stderr.write('x' * 100000)",
    "grows a file": "f = open('a', 'w')\nwhile True: f.write('x' * 100000)",
    "takes memory": "x = bytearray(4 << 30)",
    "takes memory in parts": "x = [bytearray(1 << 26) for _ in range(99)]",
    "starts many threads": """
import threading, time
threading.stack_size(32768)
for n in range(20000): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()""",
    "opens many files": "import os\nx = [os.open('/dev/null', 0) for _ in range(99999)]",
    "nests": "(" * 100000,
    "is no Python": "def (",
    "has a null": "x = 1\0",
    "has half a pair": "x = '\ud800'",
    "ends quietly": "import sys; sys.exit(0)",
    "ends at once": "import os; os._exit(0)",
    "ends as if killed": "import os; os._exit(137)",
    "ends by a signal": C
    + "libc.raise_(9) if hasattr(libc, 'raise_') else libc.syscall(234, os.getpid(), "
    "os.getpid(), 9)",
    "crashes": C + "ctypes.string_at(0)",
    "aborts": "import os; os.abort()",
    "closes everything": "import os; os.closerange(0, 100)",
    "replaces what Python needs": "import builtins, os, sys\nsys.stdout = sys.stderr = "
    "os.write = builtins.open = None",
    "takes its report back": """
import os
for n in range(64):
    try: os.read(os.open(f'/proc/self/fd/{n}', os.O_RDONLY | os.O_NONBLOCK), 99)
    except OSError: pass
os._exit(0)""",
    "forges a start and an end": "import os\nfor n in range(3, 60):\n"
    "    try: os.write(n, b'+passed' * 99)\n    except OSError: pass",
}
SLOW = {
    "stops the interpreter": "import sys; sys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
    "never ends": "while True: pass",
    "sleeps": "import time; time.sleep(1000)",
    "computes": "9**9**9**9",
    "stops itself": "import signal; signal.raise_signal(signal.SIGSTOP)",
    "ignores its limit": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile "
    "True: pass",
    "never ends at the end": "import atexit, time; atexit.register(time.sleep, 1000)",
    "leaves a thread": "import threading, time; threading.Thread(target=time.sleep, "
    "args=(1000,)).start()",
    "forks without end": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
}
# For tests that are code: the right function gives the square. Each must fail.
FUNCTIONS = {
    "equals everything": "class A:\n    def __eq__(s, o): return True\ndef sq(x): return A()",
    "equals everything as a number": "class A(int):\n    def __eq__(s, o): return True\ndef "
    "sq(x): return A(1)",
    "equals everything as a list": "class A(list):\n    def __eq__(s, o): return True\ndef "
    "sq(x): return A()",
    "replaces assertions": "import builtins\nbuiltins.AssertionError = Exception\ndef sq(x): "
    "return 1",
    "changes the tests": "import sys\nsys.modules['__main__'].check = print\ndef check(f): "
    "pass\ndef sq(x): return 1",
    "leaves early": "import os\ndef sq(x): os._exit(0)",
    "exits": "def sq(x): raise SystemExit(0)",
    "exits before": "raise SystemExit(0)",
    "exits in the end": "import atexit, os\natexit.register(os._exit, 0)\ndef sq(x): return 1",
    "says that it passed": "import os\ndef sq(x):\n    for n in range(3, 60):\n        try: "
    "os.write(n, b'passed')\n"
    "        except OSError: pass\n    os._exit(0)",
    "replies with rubbish": 'import os\ndef sq(x):\n    os.write(5, b\'[true, {"nothing": '
    "1}]\\n'); os._exit(0)",
    "replies with a deep value": "import os\ndef sq(x): os.write(5, b'[true, ' + b'[' * 60000 "
    "+ b'\\n'); os._exit(0)",
    "replies without end": "import os\ndef sq(x):\n    while True: os.write(5, b'[[],' * 10000)",
    "replies with a number too long": "import os\ndef sq(x): os.write(5, b'[true, ' + b'9' * "
    "99999 + b']\\n')",
    "raises a class of its own": "class A(Exception):\n    def __str__(s): raise s\ndef sq(x): "
    "raise A",
    "asks for the tests": "import inspect\ndef sq(x): return "
    "inspect.stack()[-1].frame.f_locals['test']",
    "returns another function": "def sq(x): return lambda *a: True",
    "returns without end": "import itertools\ndef sq(x): return itertools.count()",
    "returns nothing": "def sq(x): pass",
    "is not there": "pass",
}
# For calls whose value is compared: the right function gives the square of its only argument.
CALLS = {
    "equals everything": "class A(int):\n    def __eq__(s, o): return True\ndef f(x): return A(1)",
    "reports a flood of lists": "import os\ndef f(x):\n    while True: os.write(3, b'[],' * 20000)",
    "reports a deep value": "import os\ndef f(x):\n    os.write(3, b'[' * 60000); os._exit(0)",
    "returns a deep value": "def f(x):\n    a = []\n    for _ in range(10 ** 5): a = [a]\n    "
    "return a",
    "returns a long value": "def f(x): return [0] * 10 ** 6",
    "returns no number": "def f(x): return float('nan')",
    "returns a number too long": "def f(x): return 10 ** 10 ** 5",
    "lies about lists": "class A:\n    def tolist(s): raise SystemExit(0)\ndef f(x): return A()",
    "replaces json": "import json\njson.dumps = lambda *a, **b: 'null'\ndef f(x): return 1",
    "ends at once": "import os\ndef f(x): os._exit(0)",
    "is a property": "class Solution:\n    @property\n    def f(s): raise SystemExit(0)",
}
