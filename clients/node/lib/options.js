/** The options of the public functions: which there are, and what each may be. */

import { checkAddress, checkCount, checkFlag, checkFunction, checkGroup, checkSignal, checkSize, checkTimeout, isOptions, shown } from './arguments.js';
import { checkContext } from './envelope.js';
import { MAX_WINDOW } from './pending_call.js';

const MAX_ID = 0xffff_ffff;

/** The checks of the options of a call. */
const CALL = { timeout: checkTimeout, connection: orNull((value, name) => checkCount(value, name, 1)), context: checkContext, signal: checkSignal };

/** For each public function that has options, a check for each: it gets the value and the name, and throws TypeError or RangeError. */
const CHECKS = {
  connect: {
    address: checkAddress, reconnect: checkFlag, pace: checkFlag, senders: checkFlag, timeout: checkTimeout, onRefused: checkFunction,
  },
  publish: { receipt: checkFlag },
  subscribe: { onGap: checkFunction, maxBytes: checkSize, group: orNull(checkGroup) },
  call: CALL,
  stream: { ...CALL, window: (value, name) => checkCount(value, name, 1, MAX_WINDOW) },
  serve: { allow: checkAllow, group: orNull(checkGroup) },
};

/** Return the options of the function `name` that are given: one that is undefined is not. Throws TypeError or RangeError. */
export function givenOptions(name, options) {
  if (!isOptions(options)) {
    throw new TypeError(`the options of ${name} must be an object, not ${shown(options)}`);
  }
  return checked(name, options, CHECKS[name]);
}

/** Throws TypeError if the function `name`, which has no options, is called with arguments: `count` is their number. */
export function checkNoArguments(name, count) {
  if (count > 0) {
    throw new TypeError(`${name} takes no arguments and no options`);
  }
}

function checked(owner, options, checks) {
  const given = {};
  for (const name in options) {
    if (!Object.hasOwn(checks, name)) {
      throw new TypeError(`${owner} has no option ${shown(name)}: its options are ${Object.keys(checks).join(', ')}`);
    }
    if (options[name] !== undefined) {
      checks[name](options[name], name);
      given[name] = options[name];
    }
  }
  return given;
}

/** Return the check of an option that can be null too. */
function orNull(check) {
  return (value, name) => value === null || check(value, name);
}

/** Throws TypeError or RangeError unless these are the users and groups that may call a service. */
function checkAllow(allow, name) {
  if (!isOptions(allow)) {
    throw new TypeError(`${name} must be an object with users or groups, not ${shown(allow)}`);
  }
  const given = checked(name, allow, { users: checkIds, groups: checkIds });
  if (given.users === undefined && given.groups === undefined) {
    throw new TypeError(`${name} must have users or groups; without ${name} everyone may call`);
  }
}

function checkIds(ids, name) {
  if (!Array.isArray(ids)) {
    throw new TypeError(`allow.${name} must be an array of numbers, not ${shown(ids)}`);
  }
  ids.forEach((id) => checkCount(id, `an id in allow.${name}`, 0, MAX_ID));
}
