/** The requests of a service that run, and the callers that are watched for them. Spec: sbus-rpc(7) §7. */

import { Cancellation } from './cancellation.js';
import { Cancelled } from './errors.js';
import { toLatin1 } from './patterns.js';

/** When the caller of a request that still runs is watched: a call that is shorter costs no subscription. */
const WATCH_MILLISECONDS = 100;
/** Callers that are watched although no request of theirs runs. */
const WATCHED_CALLERS = 1024;

/** One request that runs. */
class LiveRequest {
  cancellation = new Cancellation();
  /** Its response in parts, if it has one. */
  stream = null;
  /** Whether it ran already when the callers were looked at last. */
  isOld = false;

  constructor(envelope, connection) {
    this.connection = connection;
    this.uid = envelope.uid;
    this.command = envelope.cmd;
    this.ret = envelope.ret;
  }
}

export class LiveRequests {
  #bus;
  #disconnections;
  #requests = new Map(); // by the uid, within those by the number of the connection
  #watched = new Set();
  #timer = null;

  constructor(bus, disconnections) {
    this.#bus = bus;
    this.#disconnections = disconnections;
  }

  /** Note that a request runs. Duty: `remove` it. */
  add(envelope, caller) {
    const request = new LiveRequest(envelope, caller.connection);
    const requests = this.#requests.get(request.connection);
    if (requests === undefined) {
      this.#requests.set(request.connection, new Map([[request.uid, request]]));
    } else {
      requests.set(request.uid, request);
    }
    if (this.#timer === null && request.ret !== '') {
      this.#timer = setTimeout(() => this.#look(), WATCH_MILLISECONDS);
      this.#timer.unref();
    }
    return request;
  }

  remove(request) {
    const requests = this.#requests.get(request.connection);
    if (requests?.delete(request.uid) && requests.size === 0) {
      this.#requests.delete(request.connection);
    }
  }

  /** Whether the request of a connection with this uid runs. */
  has(connection, uid) {
    return this.#requests.get(connection)?.has(uid) ?? false;
  }

  /** Handle a message about a request of the same connection: it is cancelled, or its caller accepts more parts. */
  follow(envelope, connection) {
    const request = this.#requests.get(connection)?.get(envelope.uid);
    if (request === undefined || request.command !== envelope.cmd) {
      return;
    }
    if (envelope.cancel) {
      request.cancellation.set(new Cancelled('the caller does not want the response'));
    } else {
      request.stream?.grant(envelope.win);
    }
  }

  /** Note that a connection has ended, and does not want responses to its requests. */
  left(connection) {
    this.#watched.delete(connection);
    for (const request of this.#requests.get(connection)?.values() ?? []) {
      if (request.ret !== '') {
        request.cancellation.set(new Cancelled('the caller has disconnected'));
      }
    }
  }

  /** Note that the bus has discarded messages: grants and events of disconnections may be among them. */
  noteLoss() {
    for (const [connection, requests] of this.#requests) {
      for (const request of requests.values()) {
        request.stream?.fail('the bus discarded messages to the service');
      }
      if (this.#watched.has(connection)) {
        this.#ask(connection);
      }
    }
  }

  /** Cancel all requests that want a response: this connection has ended. */
  fail() {
    this.#watched.clear();
    for (const requests of [...this.#requests.values()]) {
      for (const request of requests.values()) {
        if (request.ret !== '') {
          request.cancellation.set(new Cancelled('the connection of the service has ended'));
        }
      }
    }
  }

  /** Watch the callers of requests that were there the last time already. */
  #look() {
    this.#timer = null;
    let isNeeded = false;
    for (const [connection, requests] of this.#requests) {
      for (const request of requests.values()) {
        if (request.ret === '' || request.cancellation.isSet) {
          continue;
        }
        if (request.isOld && this.#bus.state === 'connected') {
          this.#watch(connection);
        }
        isNeeded ||= !this.#watched.has(connection);
        request.isOld = true;
      }
    }
    if (isNeeded) {
      this.#timer = setTimeout(() => this.#look(), WATCH_MILLISECONDS);
      this.#timer.unref();
    }
  }

  #watch(connection) {
    if (this.#watched.has(connection)) {
      return;
    }
    this.#watched.add(connection);
    this.#disconnections.add(connection, this);
    this.#ask(connection);
    if (this.#watched.size > WATCHED_CALLERS) {
      const idle = [...this.#watched].find((each) => !this.#requests.has(each));
      if (idle !== undefined) {
        this.#watched.delete(idle);
        this.#disconnections.delete(idle, this);
      }
    }
  }

  /** Ask the bus whether a caller is connected: if so, it receives responses. */
  async #ask(connection) {
    const ret = [...(this.#requests.get(connection)?.values() ?? [])].find((each) => each.ret !== '')?.ret;
    if (ret === undefined) {
      return;
    }
    try {
      const question = toLatin1(ret);
      const page = JSON.parse((await this.#bus._request('whether a caller is connected', '!/bus/members', question)).toString());
      if (page.members.length === 0) {
        this.#disconnections.delete(connection, this);
        this.left(connection);
      }
    } catch {
      // Then only the event says that the caller has disconnected.
    }
  }
}
