// The form that publishes a message.

import { clock, element, plural, visible } from "./text.js";

const MOST_RESULTS = 20;

const $ = (id) => document.getElementById(id);

function words(recipients) {
  if (recipients === null) return "sent; the bus does not disclose who receives a private key";
  return recipients ? `delivered to ${plural(recipients, "connection")}` : "delivered to no connection: none is subscribed";
}

export class Publisher {
  constructor(session) {
    $("publish-form").addEventListener("submit", async (event) => {
      event.preventDefault();
      const key = $("publish-key").value;
      const button = event.submitter ?? $("publish-form").querySelector("button");
      button.disabled = true;
      try {
        const response = await session.request("publish", { key, [$("publish-form-kind").value]: $("publish-payload").value });
        this.#show(`${visible(key)}: ${words(response.recipients)}`, "");
      } catch (error) {
        this.#show(`${visible(key)}: ${visible(error.message)}`, "failed");
      } finally {
        button.disabled = false;
      }
    });
  }

  // The gateway may allow no publications at all.
  begin(hello) {
    for (const field of $("publish-form").elements) field.disabled = hello.publish.length === 0;
    if (hello.publish.length === 0) this.#show("This gateway allows no publications.", "failed");
  }

  #show(text, className) {
    $("published").prepend(element("li", `${clock(new Date())}  ${text}`, className));
    while ($("published").children.length > MOST_RESULTS) $("published").lastElementChild.remove();
  }
}
