/* Addresses of a bus. Spec: sbusd(8), option -a. */
#ifndef SBUS_ADDRESS_H
#define SBUS_ADDRESS_H

#include "packet.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#define SBUS_SYSTEM_ADDRESS "/run/sbus.socket"

/* Return *address*, else $SBUS_ADDRESS if it is not empty, else the address of the system's bus. */
static inline const char *sbus_address(const char *address) {
    const char *variable = getenv("SBUS_ADDRESS");
    return address ? address : variable && *variable ? variable : SBUS_SYSTEM_ADDRESS;
}

/* Return the descriptor N of "/dev/fd/N", -1 if *address* has another form. */
static inline int sbus_address_descriptor_(const char *address) {
    struct sbus_bytes text = sbus_bytes_(address, strlen(address));
    uint64_t number;
    return sbus_skip_(&text, "/dev/fd/") && sbus_number_(text, 10, &number) && number <= 0x7fffffff ? (int)number : -1;
}

static inline int sbus_hex_digit_(char digit) {
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* Put the bytes of "/dev/unix/abstract/HEX" into *name* and return their number; -1 if *address* has another form, -2 if it is too long. */
static inline int sbus_address_hex_(const char *address, char *name, size_t capacity) {
    struct sbus_bytes text = sbus_bytes_(address, strlen(address));
    size_t i;
    if (!sbus_skip_(&text, "/dev/unix/abstract/") || text.size == 0 || text.size % 2)
        return -1;
    for (i = 0; i < text.size; i++)
        if (sbus_hex_digit_(text.data[i]) < 0)
            return -1;
    if (text.size / 2 > capacity)
        return -2;
    for (i = 0; i < text.size / 2; i++)
        name[i] = (char)(unsigned char)(sbus_hex_digit_(text.data[2 * i]) << 4 | sbus_hex_digit_(text.data[2 * i + 1]));
    return (int)(text.size / 2);
}

/* Put *address*, which is not of a descriptor, into *name*. Returns 0, or -1 with errno ENAMETOOLONG, or EINVAL if it is not an address. */
static inline int sbus_address_parse_(const char *address, struct sockaddr_un *name, socklen_t *size) {
    int count;
    size_t length = strlen(address);
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    *size = (socklen_t)sizeof *name; /* an abstract name is padded with zeros */
    count = sbus_address_hex_(address, name->sun_path, sizeof name->sun_path);
    if (count == -1) {
        if (length == 0 || strcmp(address, "/dev/unix/abstract") == 0) {
            errno = EINVAL; /* the second is a random name, which only the bus can choose */
            return -1;
        }
        count = length < sizeof name->sun_path ? (int)length : -2;
        if (count >= 0)
            memcpy(name->sun_path, address, length);
    } else if (count > 0 && name->sun_path[0]) { /* a path in hexadecimal, with zeros behind it */
        while (count > 0 && !name->sun_path[count - 1])
            count--;
        if (memchr(name->sun_path, 0, (size_t)count)) {
            errno = EINVAL;
            return -1;
        }
        count = count < (int)sizeof name->sun_path ? count : -2;
    }
    if (count == -2) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return 0;
}

#endif
