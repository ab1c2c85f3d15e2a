"""Stands in for QEMU's rdmacm-mux: accepts each request of a pvrdma device, and drops the MADs.

    python3 pvrdma_mads.py SOCKET
"""

import socket
import struct
import sys

# Size of RdmaCmMuxMsg (QEMU's contrib/rdmacm-mux/rdmacm-mux.h); its first word is 1 in a response.
MESSAGE = 360
RESPONSE = struct.pack("=I", 1)


def listen(path):
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(1)
    return server


def answer(server):
    while True:
        connection, _ = server.accept()
        try:
            while message := connection.recv(MESSAGE, socket.MSG_WAITALL):
                connection.sendall(RESPONSE + message[4:])
        except OSError:
            pass  # the device has closed this connection
        connection.close()


if __name__ == "__main__":
    answer(listen(sys.argv[1]))
