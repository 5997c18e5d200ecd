"use strict";
const at = (id) => document.getElementById(id);
const state = at("state"), talk = at("talk"), text = at("text"), model = at("model");
// A service may be below a path: the key and each request go to this service alone.
const base = `${location.origin}${location.pathname.replace(/\/?$/, "/")}`;
const conversation = [];
let key = "", reading = null;

const headers = () => ({
  "Content-Type": "application/json",
  ...(key && { Authorization: `Bearer ${key}` }),
});

function say(words, isError = false) {
  state.textContent = words;
  state.classList.toggle("error", isError);
}

async function refusal(response) {
  let words = `${response.status} ${response.statusText}`;
  try {
    words = (await response.json()).error.message;
  } catch { /* An answer of something in between. */ }
  const seconds = response.headers.get("Retry-After");
  return seconds ? `${words} (retry in ${seconds} s)` : words;
}

async function findModels() {
  say("Asking for the models…");
  let response;
  try {
    response = await fetch(`${base}v1/models`, { headers: headers() });
  } catch {
    return say("The service cannot be reached.", true);
  }
  at("key-form").hidden = response.status !== 401 && !key;
  if (response.status === 401) {
    say(key ? "The service does not know this API key." : "Enter an API key and press Enter.", Boolean(key));
    return at("key").focus();
  }
  if (!response.ok) {
    say(await refusal(response), true);
    const seconds = Number(response.headers.get("Retry-After"));
    if (seconds > 0) setTimeout(findModels, 1000 * seconds);
    return;
  }
  const names = (await response.json()).data.map((found) => found.id);
  model.replaceChildren(...names.map((name) => new Option(name)));
  at("model-row").hidden = names.length === 0;
  text.disabled = at("send").disabled = names.length === 0;
  if (names.length === 0) return say("The service has no models.", true);
  document.title = `${names[0]} – Sluice`;
  say("");
  showCurl();
  text.focus();
}

function showCurl() {
  const last = conversation.findLast((message) => message.role === "user");
  const messages = [{ role: "user", content: last ? last.content : "What is Kubernetes?" }];
  const body = JSON.stringify({ model: model.value, messages, stream: true }).replaceAll("'", "'\\''");
  const lines = [`curl -N ${base}v1/chat/completions`, "-H 'Content-Type: application/json'"];
  if (key) lines.push('-H "Authorization: Bearer $API_KEY"');
  lines.push(`-d '${body}'`);
  at("curl").textContent = lines.join(" \\\n  ");
  at("base").textContent = `${base}v1`;
}

function bubble(role, words = "") {
  const made = document.createElement("div");
  made.className = role;
  made.append(words);
  talk.append(made);
  made.scrollIntoView({ block: "end" });
  return made;
}

function inside(parent, name) {
  const made = document.createElement("span");
  made.className = name;
  parent.append(made);
  return made;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
      if (data.length) yield data.join("\n");
    }
  }
}

async function ask(question) {
  conversation.push({ role: "user", content: question });
  bubble("user", question);
  showCurl();
  const shown = bubble("assistant"), thought = inside(shown, "thought"), answer = inside(shown, "answer");
  const began = performance.now();
  let first = null, usage = null, ended = false;
  reading = new AbortController();
  busy(true);
  try {
    const response = await fetch(`${base}v1/chat/completions`, {
      method: "POST", headers: headers(), signal: reading.signal,
      body: JSON.stringify({
        model: model.value, messages: conversation, stream: true, stream_options: { include_usage: true },
      }),
    });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const data of events(response)) {
      if (data === "[DONE]") { ended = true; break; }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const delta = chunk.choices[0]?.delta ?? {};
      if (delta.content || delta.reasoning_content) first ??= performance.now();
      thought.append(delta.reasoning_content ?? "");
      answer.append(delta.content ?? "");
      if (innerHeight + scrollY > document.body.scrollHeight - 120) shown.scrollIntoView({ block: "end" });
    }
    if (!ended) throw new Error("The answer broke off.");
  } catch (error) {
    if (error.name !== "AbortError") inside(shown, "error").textContent = `\n${error.message}`;
  }
  busy(false);
  if (answer.textContent || thought.textContent) conversation.push({ role: "assistant", content: answer.textContent });
  else conversation.pop();
  if (first !== null) inside(shown, "figures").textContent = figures(began, first, usage);
  talk.lastChild.scrollIntoView({ block: "end" });
}

function figures(began, first, usage) {
  const seconds = (performance.now() - first) / 1000, count = usage?.completion_tokens;
  const words = [`first token after ${Math.round(first - began)} ms`];
  if (count > 1 && seconds > 0) words.push(`${((count - 1) / seconds).toFixed(1)} tokens/s`);
  if (usage) words.push(`${usage.prompt_tokens} + ${count} tokens`);
  return words.join(" · ");
}

function busy(is) {
  at("send").hidden = is;
  at("stop").hidden = !is;
  at("clear").disabled = is || talk.childElementCount === 0;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = text.value.trim();
  if (!question || !at("stop").hidden) return;
  text.value = "";
  ask(question);
});
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("ask").requestSubmit();
});
at("stop").addEventListener("click", () => reading.abort());
at("clear").addEventListener("click", () => {
  conversation.length = 0;
  talk.replaceChildren();
  busy(false);
  text.focus();
});
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  findModels();
});
model.addEventListener("change", showCurl);
for (const link of document.querySelectorAll("a")) link.href = base + link.getAttribute("href");
findModels();
