/** Which stream socket to connect to. Spec: sbusd(8), "ADDRESSES" and "STREAM SOCKET". */

import { SbusError } from './errors.js';

const SYSTEM_ADDRESS = '/run/sbus-stream.socket';
const ABSTRACT = '/dev/unix/abstract/';
const MAX_BYTES = 108;

/**
 * Return the paths to try, in order: `address`, else $SBUS_STREAM_ADDRESS, else $SBUS_ADDRESS, else the system's.
 *
 * $SBUS_ADDRESS usually names the SEQPACKET socket of the bus. The stream socket with the name next to it is tried first.
 */
export function candidates(address, environment = process.env) {
  const given = address ?? environment.SBUS_STREAM_ADDRESS;
  if (given) {
    return [pathOf(given)];
  }
  const other = environment.SBUS_ADDRESS;
  if (!other) {
    return [SYSTEM_ADDRESS];
  }
  const neighbour = other.endsWith('.socket') ? [other.replace(/\.socket$/, '-stream.socket')] : [];
  return [...neighbour, other].map(pathOf);
}

/** Return the path of an address, in the form that node:net takes. */
function pathOf(address) {
  if (!address.startsWith(ABSTRACT)) {
    return address;
  }
  const digits = address.slice(ABSTRACT.length);
  if (!/^(?:[0-9a-f]{2})+$/i.test(digits) || digits.length > 2 * MAX_BYTES) {
    throw new SbusError(`invalid address ${address}: it must end with at most ${MAX_BYTES} bytes in hexadecimal`, 'EINVAL');
  }
  const name = Buffer.from(digits, 'hex');
  if (name[0] !== 0) {
    return name.toString();
  }
  if (name.some((byte) => byte > 127)) {
    throw new SbusError(`cannot connect to ${address}: Node cannot use abstract names that are not ASCII`, 'EINVAL');
  }
  return name.toString('latin1').padEnd(MAX_BYTES, '\0');
}
