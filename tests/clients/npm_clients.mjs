// Cases of npm's clients: `node npm_clients.mjs NAME URL` with their packages in NODE_MODULES.
// The last line is what each said, by name, "" of those that pass, as of `cases.run_cases`.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.NODE_MODULES}/`);
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const [, , library, url] = process.argv;
const { question, answer, context, lookedUp, value } = JSON.parse(process.env.WORDS);
const model = "qwen3";
const messages = [{ role: "user", content: question }];
const asked = [{ role: "user", content: context }];
const parameters = {
  type: "object", properties: { name: { enum: ["which"] } }, required: ["name"], additionalProperties: false,
};

async function ofOpenai() {
  const { default: OpenAI } = await load("openai");
  const { zodResponseFormat } = await load("openai/helpers/zod");
  const { z } = await load("zod");
  const city = z.object({ kind: z.enum(["town", "city"]), founded: z.number().int().min(0).max(2100) });
  const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const tool = { type: "function", function: { name: "key", parameters } };
  return {
    chats: async () => {
      const chat = await client.chat.completions.create({ model, messages, logprobs: true });
      assert.equal(chat.choices[0].message.content, answer);
    },
    streams: async () => {
      const stream = client.chat.completions.stream({ model, messages });
      assert.equal(await stream.finalContent(), answer);
    },
    completes: async () => {
      const given = { model, prompt: `${question}\n`, max_tokens: 64, echo: true, logprobs: 1 };
      assert.ok((await client.completions.create(given)).choices[0].text.endsWith(answer));
    },
    parses: async () => {
      const format = zodResponseFormat(city, "city");
      const chat = await client.chat.completions.parse({ model, messages: asked, response_format: format });
      assert.ok(chat.choices[0].message.parsed.founded >= 0);
    },
    calls_tools: async () => {
      const given = { model, tools: [tool] };
      const forced = { messages: asked, tool_choice: "required", parallel_tool_calls: false };
      const { message } = (await client.chat.completions.create({ ...given, ...forced })).choices[0];
      const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: lookedUp };
      const again = await client.chat.completions.create({ ...given, messages: [...asked, message, result] });
      assert.equal(again.choices[0].message.content, value);
    },
    responds: async () => {
      assert.equal((await client.responses.create({ model, input: question })).output_text, answer);
      const stream = client.responses.stream({ model, input: question });
      assert.equal((await stream.finalResponse()).output_text, answer);
    },
    aborts: async () => {
      const stream = await client.chat.completions.create({ model, messages, stream: true, ignore_eos: true });
      for await (const _ of stream) break;
    },
    lists_models: async () => {
      assert.equal((await client.models.list()).data[0].id, model);
    },
  };
}

async function ofAiSdk() {
  const { generateText, streamText, generateObject, Output, tool } = await load("ai");
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  const { createOpenAI } = await load("@ai-sdk/openai");
  const { z } = await load("zod");
  const schema = z.object({ kind: z.enum(["town", "city"]), founded: z.number().int().min(0).max(2100) });
  const own = { name: "sluice", baseURL: url, apiKey: "none" };
  const openai = createOpenAI({ baseURL: url, apiKey: "none" });
  const kinds = {
    "openai-compatible": createOpenAICompatible({ ...own, supportsStructuredOutputs: true })(model),
    "openai.chat": openai.chat(model),
    "openai.responses": openai.responses(model),
  };
  const key = tool({ inputSchema: z.object({ name: z.enum(["which"]) }), execute: async () => lookedUp });
  const providerOptions = { openai: { parallelToolCalls: false } };
  const cases = {};
  for (const [kind, of] of Object.entries(kinds)) {
    const settings = { model: of, maxRetries: 0 };
    cases[`${kind}: generates`] = async () => {
      assert.equal((await generateText({ ...settings, prompt: question })).text, answer);
    };
    cases[`${kind}: streams`] = async () => {
      let text = "";
      for await (const piece of streamText({ ...settings, prompt: question }).textStream) text += piece;
      assert.equal(text, answer);
    };
    cases[`${kind}: generates_objects`] = async () => {
      schema.parse((await generateObject({ ...settings, schema, prompt: "Where?" })).object);
      const output = Output.object({ schema });
      schema.parse((await generateText({ ...settings, output, prompt: "Where?" })).output);
    };
    cases[`${kind}: calls_tools`] = async () => {
      const given = { tools: { key }, toolChoice: "required", prompt: context, maxOutputTokens: 200, providerOptions };
      const { toolResults } = await generateText({ ...settings, ...given });
      assert.equal(toolResults[0].output, lookedUp);
    };
  }
  cases["openai-compatible as it comes: generates_objects"] = async () => {
    const settings = { model: createOpenAICompatible(own)(model), maxRetries: 0, maxOutputTokens: 200 };
    schema.parse((await generateObject({ ...settings, schema, prompt: "Where?" })).object);
  };
  return cases;
}

const outcomes = {};
for (const [name, run] of Object.entries(await { openai: ofOpenai, "ai-sdk": ofAiSdk }[library]())) {
  try {
    await run();
    outcomes[name] = "";
  } catch (error) {
    outcomes[name] = `${error?.name}: ${error?.message}`.slice(0, 600);
  }
}
console.log(JSON.stringify(outcomes));
process.exit(0);
