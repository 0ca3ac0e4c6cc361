// Fetches the page anew and swaps its main part. Pauses while the tab is hidden, while text is
// selected, and while somebody types.
"use strict";
const EVERY = 5000;
async function refresh() {
  const busy = document.hidden || String(getSelection()) !== "" ||
    document.activeElement instanceof HTMLInputElement;
  if (!busy) {
    const state = document.getElementById("refreshed");
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      if (!fresh) throw new Error(String(answer.status));
      document.querySelector("main").replaceWith(fresh);
      state.textContent = "refreshed " + new Date().toLocaleTimeString();
      document.body.classList.remove("stale");
    } catch (error) {
      state.textContent = "not refreshed: " + error.message;
      document.body.classList.add("stale");
    }
  }
  setTimeout(refresh, EVERY);
}
setTimeout(refresh, EVERY);
