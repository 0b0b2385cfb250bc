// The page: joins the session and the views.

import { Connections } from "./connections.js";
import { Messages } from "./messages.js";
import { Publisher } from "./publish.js";
import { Session, takeKey } from "./session.js";
import { learnUsers } from "./table.js";
import { Tabs } from "./tabs.js";
import { Top } from "./top.js";
import { visible } from "./text.js";

const $ = (id) => document.getElementById(id);

function showState(state, reason) {
  $("state").dataset.state = state;
  $("state").textContent = state;
  $("alert").hidden = !reason;
  $("alert").textContent = visible(reason);
}

takeKey();
const session = new Session();
const messages = new Messages(session);
const connections = new Connections(session);
const top = new Top(session);
const publisher = new Publisher(session);
new Tabs((name) => ({ connections, top })[name]?.polling.now());

session.addEventListener("state", (event) => showState(event.detail.state, event.detail.reason));
session.addEventListener("frame", ({ detail: frame }) => {
  switch (frame.type) {
    case "hello":
      $("who").textContent = `as ${visible(frame.user)}`;
      messages.begin(frame);
      publisher.begin(frame);
      top.reset();
      session.request("connections").then(learnUsers, () => {}); // a message has only the number of its user
      connections.polling.now();
      top.polling.now();
      break;
    case "bus":
      showState(frame.state, frame.state === "connected" ? "" : "The bus is unavailable. The gateway tries to connect again.");
      break;
    case "error":
      showState($("state").dataset.state, frame.error);
      break;
    default:
      messages.receive(frame);
  }
});
session.connect();
