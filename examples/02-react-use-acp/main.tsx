/**
 * A React app on `use-acp`, which opens its WebSocket itself. Sandport goes in front of it with one line, before the app
 * connects; the rest of the app does not know.
 */

import { type FormEvent, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { createSandbox, lendOverWebSocket } from "sandport";
import { createToolServer, defineTool } from "sandport/tools";
import { useAcpClient } from "use-acp";

const address = new URLSearchParams(location.search).get("agent") ?? "ws://127.0.0.1:8400/acp";

const page = createToolServer({
  name: "page",
  ask: ({ tool }) => (confirm(`May the agent run ${tool}?`) ? "once" : "deny"),
  tools: [
    defineTool({
      name: "window_size",
      description: "Tells the size of the page.",
      run: () => ({ width: innerWidth, height: innerHeight }),
    }),
  ],
});

// The one line.
lendOverWebSocket({ url: address, tools: [createSandbox({ base: "sandport/" }), page] });

function App() {
  const { agent, notifications, connectionState } = useAcpClient({ wsUrl: address, autoConnect: true });
  const [sessionId, setSessionId] = useState<string>();
  const [text, setText] = useState("tools");

  useEffect(() => {
    if (!agent) return;
    void (async () => {
      await agent.initialize({ protocolVersion: 1, clientCapabilities: {} });
      const session = await agent.newSession({ cwd: "/", mcpServers: [] });
      setSessionId(session.sessionId);
    })();
  }, [agent]);

  const send = async (event: FormEvent) => {
    event.preventDefault();
    if (agent && sessionId) await agent.prompt({ sessionId, prompt: [{ type: "text", text }] });
  };

  return (
    <main>
      <p role="status">{sessionId ? "Ready." : connectionState.status}</p>
      <form onSubmit={send}>
        <label>
          Say <input size={60} value={text} onChange={(event) => setText(event.target.value)} />
        </label>
        <button type="submit">Send</button>
      </form>
      <pre>
        {notifications.map(({ id, type, data }) =>
          type === "session_notification" &&
          data.update.sessionUpdate === "agent_message_chunk" &&
          data.update.content.type === "text" ? (
            <span key={id}>{`${data.update.content.text}\n`}</span>
          ) : null,
        )}
      </pre>
    </main>
  );
}

const root = document.getElementById("root");
if (root) createRoot(root).render(<App />);
