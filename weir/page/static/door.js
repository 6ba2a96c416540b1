// Asks for a token where the server refuses to show anything without one.

import { post, problem as problemOf } from "./ask.js";

const form = document.querySelector("#door");
const problem = form.querySelector("p");
const AGAIN_MILLISECONDS = 5000;

// Once a stream has been refused: find out why, and call `enter` when it is worth another try.
export async function ask(enter) {
  const answer = await fetch("/api/caller").catch(() => null);
  if (answer?.status !== 401 && answer?.status !== 403) {
    setTimeout(enter, AGAIN_MILLISECONDS);
    return;
  }
  tell(answer.status === 403 ? await problemOf(answer) : "");
  form.hidden = false;
  form.onsubmit = async (event) => {
    event.preventDefault();
    try {
      await post("/api/token", { token: form.token.value });
    } catch (error) {
      tell(error.message);
      return;
    }
    form.reset();
    form.hidden = true;
    enter();
  };
}

function tell(text) {
  problem.textContent = text;
}
