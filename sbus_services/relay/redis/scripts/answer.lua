-- Deliver the response to a request, or the error that ends it, to the client, unless the request has ended.
-- ARGV: taken and raw of the message that this completes, or both empty; uid, twin, response, ret, limit of a queue, lifetime,
-- outcome; token of the failed attempt, if any; 1 if raw must be exactly what the remote host sent.
local taken, raw, uid, twin = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if taken ~= '' and not release(taken, raw) then return 'lost' end
if ARGV[10] ~= '' and redis.call('ZSCORE', R .. 'sending:' .. twin, 'q:' .. uid) ~= ARGV[10] then return 'lost' end
if ARGV[11] == '1' and redis.call('HEXISTS', P .. 'backlog', uid) == 1
    and redis.call('HGET', R .. 'vetted', uid) ~= redis.sha1hex(raw) then
  count('answers-forged')
  return 'forged'
end
local said = finish(uid, twin, ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9])
if said == 'late' then
  count(redis.call('EXISTS', R .. 'done:' .. uid) == 1 and 'answers-repeated' or 'answers-unasked')
end
return said
