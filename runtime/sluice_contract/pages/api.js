"use strict";
const at = (id) => document.getElementById(id);
// A service may be below a path: the key and each request go to this service alone.
const base = `${location.origin}${location.pathname.replace(/docs\/?$/, "")}`;
let key = "", schemas = {};

function element(name, words = "", className = "") {
  const made = document.createElement(name);
  made.append(words);
  if (className) made.className = className;
  return made;
}

const asSentence = (title) => title.charAt(0) + title.slice(1).toLowerCase();
const resolve = (schema) => (schema?.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema) ?? {};

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return [...new Set(choices.map(typeOf))].join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {})}`;
  return schema.type ?? "any";
}

function fieldsOf(schema) {
  const table = element("table"), head = table.createTHead().insertRow();
  for (const title of ["Field", "Type", "Default", "About"]) head.append(element("th", title));
  const body = table.createTBody();
  const fields = Object.entries(schema.properties ?? {});
  const isRequired = ([name]) => schema.required?.includes(name) ?? false;
  fields.sort((one, other) => isRequired(other) - isRequired(one));
  const refused = fields.filter(([, field]) => typeOf(field) === "null").map(([name]) => name);
  for (const [name, field] of fields.filter(([name]) => !refused.includes(name))) {
    const row = body.insertRow();
    row.insertCell().append(element("code", name));
    row.insertCell().append(typeOf(field));
    row.insertCell().append(isRequired([name]) ? "required" : "default" in field ? JSON.stringify(field.default) : "");
    row.insertCell().append(field.description ?? "");
  }
  if (!body.rows.length) return element("p", schema.description ?? "", "quiet");
  const made = element("div");
  made.append(table);
  if (refused.length) made.append(element("p", `Known, but not supported: ${refused.join(", ")}`, "quiet"));
  return made;
}

function contentOf(content, title, into) {
  const named = Object.entries(content ?? {}).filter(([, media]) => media.schema);
  for (const [type, media] of named) {
    into.append(element("h3", `${title} (${type})`), fieldsOf(resolve(media.schema)));
  }
}

function routeOf(path, method, operation) {
  const made = element("details", "", "route"), summary = element("summary");
  const words = operation.description?.split("\n\n")[0] ?? asSentence(operation.summary ?? "");
  summary.append(element("span", method.toUpperCase(), "method"), element("code", path), element("span", words, "quiet"));
  made.append(summary);
  for (const parameter of operation.parameters ?? []) {
    made.append(element("p", `${parameter.in}: ${parameter.name} (${typeOf(parameter.schema ?? {})})`));
  }
  contentOf(operation.requestBody?.content, "Body", made);
  for (const [status, response] of Object.entries(operation.responses ?? {})) {
    if (status.startsWith("2")) contentOf(response.content, "Answer", made);
    else made.append(element("p", `${status}: ${response.description}`, "quiet"));
  }
  return made;
}

async function show() {
  const response = await fetch(`${base}openapi.json`, { headers: key ? { Authorization: `Bearer ${key}` } : {} });
  at("key-form").hidden = response.status !== 401;
  if (!response.ok) {
    let words = `${response.status} ${response.statusText}`;
    try {
      words = (await response.json()).error.message;
    } catch { /* An answer of something in between. */ }
    at("state").textContent = words;
    return;
  }
  const document_ = await response.json();
  schemas = document_.components?.schemas ?? {};
  at("state").textContent = `Version ${document_.info.version}. Click on a route to see its fields.`;
  for (const [path, methods] of Object.entries(document_.paths)) {
    for (const [method, operation] of Object.entries(methods)) at("routes").append(routeOf(path, method, operation));
  }
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  tell();
});
for (const link of document.querySelectorAll("a")) link.href = base + link.getAttribute("href");
const tell = () => show().catch((error) => { at("state").textContent = error.message; });
tell();
