-- Up to ARGV[3] messages that this relay, ARGV[4], works on, whose list is ARGV[2]: those that it has not dealt with, else more of the
-- queue ARGV[1]. Whatever became of its lease, it is among those whose messages go back if they die.
redis.call('SADD', R .. 'relays', ARGV[4])
local raws = redis.call('LRANGE', ARGV[2], 0, tonumber(ARGV[3]) - 1)
if #raws > 0 then return raws end
for i = 1, tonumber(ARGV[3]) do
  local raw = redis.call('LMOVE', ARGV[1], ARGV[2], 'LEFT', 'RIGHT')
  if not raw then break end
  raws[i] = raw
end
return raws
