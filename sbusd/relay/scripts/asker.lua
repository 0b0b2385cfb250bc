-- Who waits for the answer to a request that this host has. ARGV: uid. The one other twin; 0 if it is none, or not one alone.
-- Twins number their requests by themselves: two may have one uid.
local found, time = 0, now()
for _, twin in ipairs(redis.call('SMEMBERS', R .. 'askers')) do
  local open = R .. 'open:' .. twin
  local deadline = redis.call('ZSCORE', open, ARGV[1])
  if deadline and tonumber(deadline) >= time then
    if found ~= 0 then
      count('answers-ambiguous')
      return 0
    end
    found = tonumber(twin)
  elseif redis.call('EXISTS', open) == 0 then
    redis.call('SREM', R .. 'askers', twin)
  end
end
return found
