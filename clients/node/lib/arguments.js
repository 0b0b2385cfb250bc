/** Checks of what a program gives to public functions, so that a mistake is reported where it is made, before anything is sent. */

/** The longest timer of Node: 24.8 days. */
const MOST_MILLISECONDS = 0x7fff_ffff;

/** Throws TypeError or RangeError unless it is a number of milliseconds that Node can wait, or Infinity for no limit. */
export function checkTimeout(timeout) {
  if (typeof timeout !== 'number') {
    throw new TypeError(`timeout must be a number of milliseconds, not ${kindOf(timeout)}`);
  }
  if (!(timeout > 0 && (timeout <= MOST_MILLISECONDS || timeout === Infinity))) {
    throw new RangeError(`timeout must be above 0 and at most ${MOST_MILLISECONDS} milliseconds, or Infinity for no limit, not ${timeout}`);
  }
}

/** Throws TypeError or RangeError unless it is a number of bytes, or Infinity. */
export function checkSize(size, name) {
  if (typeof size !== 'number') {
    throw new TypeError(`${name} must be a number of bytes, not ${kindOf(size)}`);
  }
  if (!(size >= 1)) {
    throw new RangeError(`${name} must be at least 1, not ${size}`);
  }
}

/** Throws TypeError or RangeError unless it is an integer from `least` to `most`. */
export function checkCount(count, name, least, most = Number.MAX_SAFE_INTEGER) {
  if (typeof count !== 'number') {
    throw new TypeError(`${name} must be a number, not ${kindOf(count)}`);
  }
  if (!Number.isInteger(count) || count < least || count > most) {
    throw new RangeError(`${name} must be an integer from ${least} to ${most}, not ${count}`);
  }
}

/** Throws TypeError unless it is a function, or undefined. */
export function checkFunction(value, name) {
  if (value !== undefined && typeof value !== 'function') {
    throw new TypeError(`${name} must be a function, not ${kindOf(value)}`);
  }
}

/** Return whether it is an object with options. */
export function isOptions(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array);
}

/** Throws TypeError unless it is an object with options. */
export function checkOptions(value) {
  if (!isOptions(value)) {
    throw new TypeError(`options must be an object, not ${kindOf(value)}`);
  }
}

/** Return the bytes of a payload. Throws TypeError. */
export function payloadOf(payload) {
  if (typeof payload === 'string') {
    return Buffer.from(payload);
  }
  if (payload instanceof Uint8Array) {
    return payload;
  }
  throw new TypeError(`payload must be a string or a Uint8Array, not ${kindOf(payload)}`);
}

/** Return the type of a value, for error messages. */
export function kindOf(value) {
  return value === null ? 'null' : Array.isArray(value) ? 'an array' : typeof value;
}

/** Call `act` after this time, never for Infinity; return the timer, which clearTimeout takes. */
export function later(act, milliseconds) {
  return milliseconds === Infinity ? null : setTimeout(act, milliseconds);
}
