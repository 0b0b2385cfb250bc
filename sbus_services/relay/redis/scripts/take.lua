-- Return up to ARGV[3] messages for this relay, ARGV[4], from its list ARGV[2]: unprocessed ones, else new ones of the queue ARGV[1].
-- The relay is registered again, so that its messages are recovered if it dies, even after its lease expired.
redis.call('SADD', R .. 'relays', ARGV[4])
local raws = redis.call('LRANGE', ARGV[2], 0, tonumber(ARGV[3]) - 1)
if #raws > 0 then return raws end
for i = 1, tonumber(ARGV[3]) do
  local raw = redis.call('LMOVE', ARGV[1], ARGV[2], 'LEFT', 'RIGHT')
  if not raw then break end
  raws[i] = raw
end
return raws
