/** Errors of the client. Each has a `code` for programs and a message for people. */

export class SbusError extends Error {
  constructor(message, code) {
    super(message);
    this.name = this.constructor.name;
    this.code = code;
  }
}

/** The client cannot connect to a bus at the address. */
export class NoBus extends SbusError {}

/** The connection has ended. `code` is that of the bus, such as EPROTO, or ECLOSED. */
export class Disconnected extends SbusError {
  constructor(reason, code = 'ECLOSED') {
    super(`the connection to the bus has ended: ${reason}`, code);
  }
}

/** The bus has refused a packet. `code` is that of the bus, such as EPERM, and `text` are its words. */
export class Refused extends SbusError {
  constructor(what, code, text) {
    super(`the bus refused ${what}: ${code} ${text}`, code);
    this.text = text;
  }

  /** @internal Return it with the words that the connection has ended, too. */
  withEnd() {
    this.message += '; the bus has closed the connection';
    return this;
  }
}

/** No answer came in time. */
export class TimedOut extends SbusError {
  constructor(what, milliseconds) {
    super(`no answer within ${milliseconds} ms: ${what}`, 'ETIMEDOUT');
  }
}

/** A call that has no result. `command` is the name of the procedure. */
export class CallError extends SbusError {
  constructor(command, message, code) {
    super(`the call of ${JSON.stringify(command)} failed: ${message}`, code);
    this.command = command;
  }
}

/** No service runs the command. If sbus-trigger was to start one, `reason` says why that failed, else it is empty. */
export class NoRecipient extends CallError {
  constructor(command, reason = '') {
    super(command, `no service runs this command${reason === '' ? '' : `: ${reason}`}`, 'ENOENT');
    this.reason = reason;
  }
}

/** All services that got the request have disconnected. The request may have been run. */
export class PeerDisconnected extends CallError {
  constructor(command) {
    super(command, 'the service has disconnected', 'EPIPE');
  }
}

/** The service has answered with an error. `text` are its words. */
export class RemoteError extends CallError {
  constructor(command, text, callee) {
    super(command, text, 'EREMOTE');
    this.text = text;
    this.callee = callee;
  }
}

/** No response came in time. The request may have been run, unless `isSent` is false. */
export class CallTimeout extends CallError {
  constructor(command, milliseconds, isSent = true) {
    const words = isSent ? 'no response' : 'it was not sent, because the bus was not there or did not answer,';
    super(command, `${words} within ${milliseconds} ms`, 'ETIMEDOUT');
    this.isSent = isSent;
  }
}

/** The bus has discarded messages to this client, and parts of the response may be among them. The request may have been run. */
export class AnswerLost extends CallError {
  constructor(command, part) {
    super(command, `part ${part} of the response may be lost: this client reads too slowly`, 'ENOBUFS');
  }
}

/** Why the `signal` of a request is aborted: the caller has cancelled the request, or has disconnected. */
export class Cancelled extends SbusError {
  constructor(reason) {
    super(`the request is cancelled: ${reason}`, 'ECANCELED');
  }
}

/** Thrown by a handler of a service: its message is sent to the caller. */
export class ServiceError extends SbusError {
  constructor(message) {
    super(message, 'ESERVICE');
  }
}
