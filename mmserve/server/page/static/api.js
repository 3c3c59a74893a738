// Talking to the server: the key, JSON, streams of events, and refusals with their way out.

const STORED = "mmserve-key";

/** What the server refuses or fails with; `hint` is the way out, if it names one. */
export class ApiError extends Error {
  constructor(words, { status = 0, code = "", param = null } = {}) {
    const [message, hint = ""] = words.split(/\.? hint: /, 2);
    super(message);
    Object.assign(this, { hint, status, code, param });
  }
}

export const key = {
  get: () => sessionStorage.getItem(STORED) ?? "",
  set: (value) => value ? sessionStorage.setItem(STORED, value) : sessionStorage.removeItem(STORED),
};

/** JSON of one answer. Raises ApiError, or AbortError if `signal` ended it. */
export async function call(path, options = {}) {
  return (await send(path, options)).json();
}

/** The events of a streamed answer, parsed. Raises as `call`, in the midst of a stream too. */
export async function* events(path, json, signal) {
  const response = await send(path, { json, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      const words = part.replace(/^data: ?/, "");
      if (words === "[DONE]") return;
      const event = JSON.parse(words);
      if (event.error) throw refusal(event.error, 0);
      yield event;
    }
  }
}

async function send(path, { method, json, body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (json !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: method ?? (json !== undefined || body ? "POST" : "GET"),
      headers, signal, body: json === undefined ? body : JSON.stringify(json),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server does not answer. hint: is it still running?");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  if (told?.error) throw refusal(told.error, response.status);
  throw new ApiError(`the server answers with status ${response.status}`, { status: response.status });
}

function refusal(error, status) {
  return new ApiError(error.message, { status, code: error.code, param: error.param });
}
