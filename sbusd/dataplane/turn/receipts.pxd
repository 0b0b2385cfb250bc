# Receipts. See receipts.pxi.

from libcpp.string cimport string


cdef enum Disclosure:       # whether the publisher may know the number in a receipt
    UNDECIDED               # not known, and most keys need no decision
    ASKED                   # the key is secret: the control plane decides before the message is routed
    DISCLOSED
    WITHHELD


cdef cppclass Receipt:      # what a connection has asked to know about its next message
    bint is_armed
    Disclosure disclosure
    bint always             # False: only if the message has no recipient
    bint lists              # whether it lists the recipients
    string token
