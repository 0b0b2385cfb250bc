-- Store a response of a remote host.
-- ARGV: uid, body, limit of a queue, twin that sent it, nonce and for how many seconds it is remembered.
-- Returns accepted, repeated, unasked, forged, replayed or queue.
if not is_new(ARGV[5], ARGV[6]) then return 'replayed' end
local asked = redis.call('HGET', P .. 'backlog', ARGV[1])
if not asked then
  if redis.call('EXISTS', R .. 'done:' .. ARGV[1]) == 1 then
    count('answers-repeated')
    return 'repeated'
  end
  count('answers-unasked')
  return 'unasked'
end
if cjson.decode(asked).dst[1] ~= tonumber(ARGV[4]) then return 'forged' end
if not has_room(P .. 'reply', tonumber(ARGV[3])) then
  count('answers-deferred')
  return 'queue'
end
-- Distinguishes it from responses that local applications push.
redis.call('HSET', R .. 'vetted', ARGV[1], redis.sha1hex(ARGV[2]))
redis.call('RPUSH', P .. 'reply', ARGV[2])
count('answers-received')
return 'accepted'
