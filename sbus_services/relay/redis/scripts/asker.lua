-- Find the host that receives an error which does not name it. ARGV: taken, raw, uid, cmd.
-- Returns the twin if its request is open, had this command, and is the only remembered one with this uid; 'none' if there is none, or it
-- has expired; 'ambiguous' if the error was dropped; 'lost' if another relay has taken raw over.
-- Hosts choose their uids themselves: two can use the same one, by accident or on purpose.
local uid, found, is_sure, time = ARGV[3], nil, redis.call('EXISTS', R .. 'askers-forgotten') == 0, now()
local is_open = false
for _, twin in ipairs(redis.call('SMEMBERS', R .. 'askers')) do
  local till = redis.call('ZSCORE', R .. 'asked:' .. twin, uid)
  local deadline = redis.call('ZSCORE', R .. 'open:' .. twin, uid)
  if till and tonumber(till) >= time or deadline then
    is_sure = is_sure and not found and redis.call('HGET', R .. 'asked-commands:' .. twin, uid) == ARGV[4]
    found = twin
    is_open = deadline and tonumber(deadline) >= time
  elseif redis.call('EXISTS', R .. 'asked:' .. twin, R .. 'open:' .. twin) == 0 then
    redis.call('SREM', R .. 'askers', twin)
  end
end
if found and not is_sure then
  if not release(ARGV[1], ARGV[2]) then return 'lost' end
  count('answers-ambiguous')
  return 'ambiguous'
end
return is_open and found or 'none'
