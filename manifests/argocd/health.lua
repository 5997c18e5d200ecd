-- The health of an InferenceService or an EnginePool, for Argo CD: `obj` is the object.
-- Degraded is what needs a person, or serves nobody; Progressing is what becomes well by itself.
local found = {}
local status = obj.status or {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end

-- A condition whose text another one has names that one.
local named = { ["See Updated."] = found.Updated, ["See Stalled."] = found.Stalled }

local function told(condition)
  if condition == nil then
    return "No condition yet."
  end
  local text = named[condition.message] or condition
  return condition.reason .. ": " .. (text.message or "")
end

local function is(kind, value)
  return found[kind] ~= nil and found[kind].status == value
end

if obj.metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = "It is being deleted." }
end
if status.observedGeneration ~= obj.metadata.generation or found.Ready == nil then
  return { status = "Progressing", message = "The operator has not seen this spec yet." }
end
if is("Stalled", "True") then
  return { status = "Degraded", message = told(found.Stalled) }
end
if found.Progressing ~= nil and found.Progressing.reason == "Paused" then
  return { status = "Suspended", message = told(found.Progressing) }
end
if is("Reconciling", "True") then
  return { status = "Progressing", message = told(found.Reconciling) }
end
if is("Ready", "True") then
  return { status = "Healthy", message = told(found.Ready) }
end
if is("Ready", "False") then
  return { status = "Degraded", message = told(found.Ready) }
end
return { status = "Progressing", message = told(found.Ready) }
