/** Calls that wait for a response. No I/O. Spec: sbus-rpc(7) §3, §4. */

import { randomUUID } from 'node:crypto';

import { later } from './arguments.js';
import { AnswerLost, NoRecipient, PeerDisconnected, RemoteError } from './errors.js';

const HELD_RESPONSES = 16;
/** Parts that a caller may grant ahead. */
export const MAX_WINDOW = 1024;

/** A response: `data` are its bytes, and `callee` is the service, as the bus verifies it. */
export class Response {
  constructor(data, callee) {
    this.data = data;
    this.callee = callee;
  }

  text() {
    return this.data.toString();
  }

  json() {
    return JSON.parse(this.text());
  }
}

/** A call with one response. `onDone(error, response)` is called once. */
export class PendingCall {
  uid = randomUUID();
  isSent = false;
  isDone = false;
  /** The connections that got the request, null while the bus has not said, or if it did not list them. */
  recipients = null;
  /** The connections whose responses count, null while they are not known. */
  callees = null;
  onReceipt = null;
  /** Whether its receipt has arrived, or is lost. */
  isListed = false;
  onDone = null;
  #gone = [];
  #held = [];

  constructor(command, connection = null) {
    this.command = command;
    this.connection = connection;
    this.key = `rpc/${command}`;
    if (connection !== null) {
      this.callees = new Set([connection]);
    }
  }

  /** The number of the last part that the request accepts; 0: no parts. */
  get window() {
    return 0;
  }

  /** Handle a response, from whomever. */
  respond(sender, envelope) {
    if (this.isDone) {
      return;
    }
    if (this.callees === null) {
      // For each user, so that listeners of other users cannot displace the response.
      if (this.#held.filter(([each]) => each.uid === sender.uid).length < HELD_RESPONSES) {
        this.#held.push([sender, envelope]);
      }
    } else if (this.callees.has(sender.connection)) {
      this.accept(sender, envelope);
    }
  }

  /** Handle a response of a callee. */
  accept(sender, envelope) {
    if (envelope.err === '') {
      this.finish(null, new Response(envelope.dat, sender));
    } else {
      this.finish(new RemoteError(this.command, envelope.err, sender));
    }
  }

  /** Note the callees: those that serve, and those that have departed, of which only a response that is held already can count. */
  called(serving, departed) {
    this.callees = new Set([...serving, ...departed]);
    for (const [sender, envelope] of this.#held.splice(0)) {
      this.respond(sender, envelope);
    }
    if (this.callees.size === 0) {
      this.finish(new NoRecipient(this.command));
    }
    for (const number of [...this.#gone, ...departed]) {
      this.left(number);
    }
  }

  /** Note that a connection has ended. */
  left(number) {
    if (this.callees === null) {
      this.#gone.push(number);
    } else if (this.callees.delete(number) && this.callees.size === 0) {
      this.finish(new PeerDisconnected(this.command));
    }
  }

  /** Note that the bus has discarded messages to this client. */
  lost() {}

  finish(error, response = null) {
    if (!this.isDone) {
      this.isDone = true;
      this.onDone?.(error, response);
    }
  }
}

/** A call whose response arrives in parts: the program takes them with `next`, and the service sends as many as are granted. */
export class PendingStream extends PendingCall {
  /** The service, once its first part has arrived. */
  callee = null;
  /** Whether the service may go on, although the stream has failed here. */
  isBroken = false;
  /** The last part that is granted. */
  granted = 1;
  /** Called with the other callees, where the request has to be cancelled. */
  onChosen = null;
  #parts = [];
  #expected = 1;
  #taken = 0;
  #ahead;
  #error = null;
  #wake = null;

  constructor(command, connection, window) {
    super(command, connection);
    this.#ahead = window;
  }

  /** The first request grants one part, because each service of the command sends one. */
  get window() {
    return 1;
  }

  accept(sender, envelope) {
    if (this.callee === null) {
      this.callee = sender;
      const others = [...this.callees].filter((each) => each !== sender.connection);
      this.callees = new Set([sender.connection]);
      this.onChosen?.(others);
    }
    if (envelope.err !== '') {
      this.finish(new RemoteError(this.command, envelope.err, sender));
    } else if (envelope.seq === 0 && this.#expected === 1) {
      this.#put(envelope, sender); // of a service that does not stream
      this.finish(null);
    } else if (envelope.seq !== this.#expected) {
      this.#break(new AnswerLost(this.command, this.#expected));
    } else if (envelope.more === 0) {
      this.finish(null);
    } else if (envelope.seq > this.granted) {
      this.#break(new RemoteError(this.command, `invalid response: part ${envelope.seq} was not requested yet`, sender));
    } else {
      this.#expected += 1;
      this.#put(envelope, sender);
    }
  }

  lost() {
    this.#break(new AnswerLost(this.command, this.#expected));
  }

  /** End it. Parts that have arrived can still be taken. */
  finish(error) {
    if (!this.isDone) {
      this.#error = error;
      super.finish(error);
      this.#rouse();
    }
  }

  /** End it, without the parts that have arrived. */
  abandon(error) {
    this.isBroken ||= !this.isDone;
    this.#parts = [];
    this.#error = error;
    this.finish(error);
    this.#rouse();
  }

  /** Whether `next` need not wait. */
  get isReady() {
    return this.#parts.length > 0 || this.isDone;
  }

  /** Wait until `isReady`, for at most this time; return whether it is. */
  async wait(milliseconds) {
    if (!this.isReady) {
      let timer;
      await new Promise((resolve) => {
        this.#wake = resolve;
        timer = later(resolve, milliseconds);
      });
      clearTimeout(timer);
    }
    return this.isReady;
  }

  /** Return the next part, or null after the last one. Throws the error of the call. */
  take() {
    if (this.#parts.length > 0) {
      this.#taken += 1;
      return this.#parts.shift();
    }
    if (this.#error !== null) {
      throw this.#error;
    }
    return null;
  }

  /** Return the number of the last part to grant now, because the program has taken half of the window; 0: none. */
  nextGrant() {
    const window = this.#taken + this.#ahead;
    if (this.isDone || this.callee === null || 2 * (window - this.granted) < this.#ahead) {
      return 0;
    }
    return (this.granted = window);
  }

  #put(envelope, sender) {
    this.#parts.push(new Response(envelope.dat, sender));
    this.#rouse();
  }

  #break(error) {
    if (!this.isDone) {
      this.isBroken = true;
      this.finish(error);
    }
  }

  #rouse() {
    const wake = this.#wake;
    this.#wake = null;
    wake?.();
  }
}
